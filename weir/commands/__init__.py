"""The commands of `weir`, by what they are about. weir/cli.py puts them together."""
