"""The public interface of the server: `Server` and `Context`."""
