"""What a server offers: tools, resources, prompts, completions, and what their lists and results are made of."""
