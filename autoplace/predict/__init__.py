"""How fast a placement will be, before it is built."""
