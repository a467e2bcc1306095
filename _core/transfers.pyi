from typing import final

@final
class Transfers: ...
