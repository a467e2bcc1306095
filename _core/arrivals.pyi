from typing import final

@final
class Arrivals:
    def __len__(self) -> int: ...
