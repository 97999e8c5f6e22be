"""Which devices CUDA_VISIBLE_DEVICES and its kin leave, and in which order, as the runtimes read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt_mcp.models import Device
from kopt_mcp.platforms.host import Host
from kopt_mcp.platforms.interface import Found


@dataclass(frozen=True)
class Card:
    """One GPU in the driver's order, with the MIG instances cut from it."""

    uuid: str
    instances: tuple[str, ...] = ()
    """UUIDs of the MIG instances; a GPU in MIG mode is only usable through them."""
    aliases: Mapping[str, str] | None = None
    """Other spellings of an instance (`MIG-GPU-…/1/0`) to its UUID."""

    @property
    def usable(self) -> tuple[str, ...]:
        """What a process can open: the instances, or the GPU itself."""
        return self.instances or (self.uuid,)


def select(mask: str | None, cards: Sequence[Card]) -> list[str]:
    """UUIDs of the visible devices in the order the runtime numbers them.

    No mask shows everything. As the CUDA documentation has it, an entry that names nothing hides itself and all after
    it; one that repeats an earlier one is treated alike. A UUID may be shortened as long as one device fits. An index
    or GPU UUID of a card in MIG mode stands for its first instance, the only one CUDA opens.
    """
    if mask is None:
        return [uuid for card in cards for uuid in card.usable]
    chosen: list[str] = []
    for entry in mask.split(","):
        uuid = _named(entry.strip(), cards)
        if uuid is None or uuid in chosen:
            break
        chosen.append(uuid)
    return chosen


def visible(host: Host, vendor: str, mask: str, cards: Sequence[Card], devices: Mapping[str, Device]) -> Found:
    """The devices that the environment variable `mask` leaves, with their indices, and a note on those it hides.

    `devices` by UUID, or what stands for one in `cards`.
    """
    chosen = [uuid for uuid in select(host.env.get(mask), cards) if uuid in devices]
    hidden = len(devices) - len(chosen)
    note = f"{mask}={host.env.get(mask)!r} hides {hidden} of {len(devices)} {vendor} devices"
    found = [devices[uuid].model_copy(update={"index": index}) for index, uuid in enumerate(chosen)]
    return Found(found, [note] if hidden else [])


def _named(entry: str, cards: Sequence[Card]) -> str | None:
    if entry.isdigit():
        return cards[int(entry)].usable[0] if int(entry) < len(cards) else None
    names = {card.uuid: card.usable[0] for card in cards if card.uuid}
    for card in cards:
        names |= {uuid: uuid for uuid in card.instances}
        names |= dict(card.aliases or {})
    if entry in names:
        return names[entry]
    fits = [uuid for name, uuid in names.items() if name.lower().startswith(entry.lower())]
    return fits[0] if len(fits) == 1 and entry.upper().startswith(("GPU-", "MIG-")) else None
