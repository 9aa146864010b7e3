"""What a person sees: tables, progress and verdicts on the terminal."""
