"""What Lowtide tells of itself: reports in numbers, and a log."""
