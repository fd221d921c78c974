"""The subcommands of the command line, one room per purpose; what a command needs is imported inside it."""
