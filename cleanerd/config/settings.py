"""How a key is declared, and how layers of texts become settings.

A key is one field of a subclass of `Settings`: `field: Annotated[TYPE, CHECK, Key(...)] = default`. TYPE is one of those
below, CHECK may be missing, and a key that is not set unless it is configured is `TYPE | None`. pydantic-settings merges the
layers, each a `TextSource`, and has every value read and checked; `declared_keys` is the table of what is declared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Annotated, Any, Self, get_args

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from cleanerd.config.values import ANY, BLANKS, Check, Value, ValueType

Bool = Annotated[bool, ValueType.BOOLEAN]
Int = Annotated[int, ValueType.INT]
Long = Annotated[int, ValueType.LONG]
Double = Annotated[float, ValueType.DOUBLE]
Rate = Annotated[float, ValueType.RATE]
Str = Annotated[str, ValueType.STRING]
Words = Annotated[tuple[str, ...], ValueType.LIST]
Paths = Annotated[tuple[str, ...], ValueType.PATHS]
_UNITS = {unit: unit for unit in ("ms", "minutes", "hours", "bytes", "ratio", "percent")}
_UNITS["second"] = "bytes/s"


class Layer(Enum):
    """The layers of the configuration, highest precedence first."""

    COMMAND_LINE = "command line"
    TOPIC_FILE = "topic file"
    METADATA = "metadata log"
    BROKER = "broker's answer"
    ENVIRONMENT = "environment"
    CONFIG_FILE = "config file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value; `detail` is file and line, variable, option or record."""

    layer: Layer
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.layer.value}: {self.detail}" if self.detail else self.layer.value


DEFAULT = Origin(Layer.DEFAULT)


class Text(str):
    """Text of a value as it was written, with its origin."""

    __slots__ = ("origin",)
    origin: Origin

    def __new__(cls, text: str, origin: Origin) -> Self:  # noqa: D102 - see the class
        found = super().__new__(cls, text)
        found.origin = origin
        return found


Texts = Mapping[str, Text]


@dataclass(frozen=True, slots=True)
class Setting:
    """A parsed value with its origin."""

    value: Any  # a `values.Value` of the type that the key declares
    origin: Origin


class Scope(Enum):
    """When a changed value takes effect (column "Dyn" of spec behaviour 8)."""

    STATIC = "no"  # at the next start: a reload that changes it is refused (7.21)
    RELOADABLE = "yes"  # at a reload of any layer, BROKER records of the metadata log included


@dataclass(frozen=True, slots=True)
class Key:
    """The declaration of a key. `type`, `check`, `default` and `field` are filled in from the field.

    `default` None: not set unless it is configured. `synonyms`: of a topic key, the broker keys that are its default, in
    order. A name that ends in `*` stands for all keys that begin so.
    """

    name: str
    doc: str
    scope: Scope = Scope.RELOADABLE
    unit: str = ""
    synonyms: tuple[str, ...] = ()
    type: ValueType = ValueType.STRING
    check: Check = ANY
    default: Value | None = None
    field: str = ""


class Settings(BaseSettings):
    """Base of the classes that declare keys; instances are frozen."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=False)

    @classmethod
    def of(cls, *layers: Mapping[str, Any]) -> Self:
        """Values of these layers by key, the highest precedence first. Raises pydantic's `ValidationError`."""
        sources: dict[str, Any] = {"layers": [TextSource(cls, layer) for layer in layers]}
        return cls(**sources)

    def but(self, **changes: object) -> Self:
        """A copy with other values, by field."""
        assert changes.keys() <= type(self).model_fields.keys()
        return self.model_copy(update=changes)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        *_: Any,
        **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The layers alone: which variables count is decided where the environment is read."""
        assert isinstance(init_settings, InitSettingsSource)
        return tuple(init_settings.init_kwargs.pop("layers", (init_settings,)))


class TextSource(PydanticBaseSettingsSource):
    """One layer: texts, or values that were parsed before, by key. Those that the class has no field for are passed over."""

    def __init__(self, settings_cls: type[BaseSettings], texts: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._texts = texts

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The layer's text for a field; for a key that is a prefix, all texts under that prefix."""
        name = _key(field).name
        prefix = name.removesuffix("*")
        if prefix == name:
            return self._texts.get(name), field_name, False
        found = {
            key.removeprefix(prefix): text for key, text in self._texts.items() if key.startswith(prefix)
        }
        return found or None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Values by field."""
        fields = self.settings_cls.model_fields.items()
        found = {name: self.get_field_value(field, name)[0] for name, field in fields} if self._texts else {}
        return {name: value for name, value in found.items() if value is not None}


@cache
def declared_keys(settings: type[Settings]) -> Mapping[str, Key]:
    """The keys that a class declares, by name."""
    keys = [_declared(field, name) for name, field in settings.model_fields.items()]
    return {key.name: key for key in keys}


def _declared(field: FieldInfo, name: str) -> Key:
    key, found = _key(field), list(metadata(field))
    return replace(
        key,
        type=next((one for one in found if isinstance(one, ValueType)), key.type),
        check=next((one for one in found if isinstance(one, Check)), key.check),
        unit=key.unit or _UNITS.get(key.name.rpartition(".")[2], ""),
        default=field.default,
        field=name,
    )


def _key(field: FieldInfo) -> Key:
    return next(one for one in field.metadata if isinstance(one, Key))


def metadata(field: FieldInfo) -> Iterator[object]:
    """Annotations of a field, in order; the TYPE in `TYPE | None` comes first."""
    for inner in get_args(field.annotation):
        yield from getattr(inner, "__metadata__", ())
    yield from field.metadata


def _sorted_pairs(found: object) -> object:
    if isinstance(found, dict):
        return tuple((name, text.strip(BLANKS)) for name, text in sorted(found.items()))
    return found


Properties = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_sorted_pairs)]
"""Texts by the rest of their key after the prefix."""
