"""What is around the computer: its management controller, and the services without which its devices do not work."""
