"""`dlr job timeline`: a job's life as a picture. `life` is what is drawn, `drawing` draws it."""
