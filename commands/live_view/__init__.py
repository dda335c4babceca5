"""What a person sees while a job runs."""
