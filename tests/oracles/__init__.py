"""Other people's code that tests compare with."""
