"""Contains the dashboard and the command line."""

if __name__ == "app":  # from the root of the source: a second copy, whose classes are not those of the first
    raise ImportError("Import logs_ui.app: the folder app is a part of the package logs_ui.")
