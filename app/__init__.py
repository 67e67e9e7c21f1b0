"""Contains the dashboard and the command line."""
