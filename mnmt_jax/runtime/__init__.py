"""Process start and end: command entry point, interrupts, compilation cache."""
