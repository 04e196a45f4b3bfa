"""`Lifetime`: what a `with` starts and ends. A start that fails leaves nothing behind."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifetime(ABC):
    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """End it; also what was only half started."""

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
