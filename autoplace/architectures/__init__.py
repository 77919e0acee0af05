"""One description of a model, from which matching, memory, time and the torch modules derive."""
