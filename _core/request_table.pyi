from typing import final

@final
class RequestTable:
    num_owned: int
    def __new__(cls) -> RequestTable: ...
