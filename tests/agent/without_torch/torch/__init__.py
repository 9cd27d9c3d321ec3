"""Stands for torch where what is preloaded does not matter: its import takes two seconds of a core."""
