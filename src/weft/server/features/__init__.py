"""Register and serve tools, resources, prompts and completions."""
