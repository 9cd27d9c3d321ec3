"""Training processes, their exits and their orphans."""
