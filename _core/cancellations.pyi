from typing import final

@final
class Cancellations:
    def __len__(self) -> int: ...
