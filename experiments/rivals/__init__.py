"""Other attention methods, one function a file, for comparison."""
