"""Run calls of tools as tasks: work that goes on after the call is answered, on any worker."""
