"""The command line: run a job under watch, replay a capture, demonstrate on a real job with a real fault."""
