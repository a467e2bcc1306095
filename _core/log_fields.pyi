# No Python door: log_encoder is the only user.
