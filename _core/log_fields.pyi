# No Python door: log_encoder is the only user.
__pyx_capi__: dict[str, object]
