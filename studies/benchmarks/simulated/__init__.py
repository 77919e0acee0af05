"""A machine that there is not, to study search strategies on."""
