"""What attaches to other people's libraries: one library a file."""
