"""What must be true.  Plain Python and NumPy; imports nothing of what it judges."""
