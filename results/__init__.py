"""Evidence: raw results in one table format, claims as data, and the program that draws RESULTS.md from them."""
