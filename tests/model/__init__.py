"""A slow, plain model of the vLLM-flavoured engine and its offline replay, written from the behaviour alone.

It shares no code with the product. Whatever the compiled core says is compared with what this model says;
it favours the shortest readable form over speed, and keeps every block, token and pass as an object.
"""
