"""What each command of the command line does; `services.cli` lists them."""
