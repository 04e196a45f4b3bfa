"""The commands that this package adds to `forebay`, by the entry point group `forebay.commands`."""
