"""Running llama.cpp: which of its programs are here, one trial of them, what their logs say."""
