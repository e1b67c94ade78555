"""Ask the client during a call (elicitation, sampling, roots), and call functions once per logical call."""
