"""The two eras (families of protocol versions), and all code that depends on how they differ."""
