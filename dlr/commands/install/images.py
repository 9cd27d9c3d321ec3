"""Choice of an installation's images: those of the options, or else the present ones. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import deploy
from dlr.commands.install.kinds import container_of
from dlr.kube.api import JSON

_CHECK_OPTION, _AGENT_OPTION = "--check-image=", "--agent-image="


@dataclass(frozen=True)
class Images:
    """Images of an installation; None for an unnamed one."""

    controller: str | None = None
    check: str | None = None
    agent: str | None = None

    def otherwise(self, other: Images) -> Images:
        """Return these images, with the other's in place of unnamed ones."""
        return Images(
            other.controller if self.controller is None else self.controller,
            other.check if self.check is None else self.check,
            other.agent if self.agent is None else self.agent,
        )

    def complete(self) -> tuple[str, str, str]:
        """Return the images of the controller, of node checks, and of the agent.

        Unnamed ones come from the controller's registry, with its tag.
        """
        controller = deploy.DEFAULT_IMAGE if self.controller is None else self.controller
        return (
            controller,
            _beside(controller, deploy.DEFAULT_CHECK_IMAGE) if self.check is None else self.check,
            _beside(controller, deploy.DEFAULT_AGENT_IMAGE) if self.agent is None else self.agent,
        )


def images_of(deployment: JSON) -> Images:
    """Return the images of a live Deployment of the controller."""
    container = container_of(deployment)
    options = container.get("args") or ()
    return Images(container["image"], _last(options, _CHECK_OPTION), _last(options, _AGENT_OPTION))


def of_no_registry(images: tuple[str, ...]) -> list[str]:
    """Return the images without a registry, which no node can pull."""
    return [image for image in images if "/" not in image]


def _last(options: tuple[str, ...] | list[str], option: str) -> str | None:
    """Return the last, which counts, of several values of an option, as an overlay may add another."""
    found = [each.removeprefix(option) for each in options if each.startswith(option)]
    return found[-1] if found else None


def _beside(image: str, default: str) -> str:
    """Return the default image in the registry, and with the tag, of another image."""
    folder, slash, name = image.partition("@")[0].rpartition("/")
    name_wanted, _, tag_otherwise = default.partition(":")
    return f"{folder}{slash}{name_wanted}:{name.partition(':')[2] or tag_otherwise}"
