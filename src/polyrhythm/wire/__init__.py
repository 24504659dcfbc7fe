"""Pure bytes: frames and typed messages. Encoding returns buffers and never joins payloads."""
