"""Plain torch modules assembled from a ModelSpec."""
