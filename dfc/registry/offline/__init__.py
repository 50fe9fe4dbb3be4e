"""What is done with a registry while no proxy uses it: moving it, and making it anew from what is left."""
