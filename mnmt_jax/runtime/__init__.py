"""Process start and end: command frame, interrupts, compilation cache."""
