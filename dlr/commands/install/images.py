"""Which images an installation has: those that one names, else those that it has already. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import deploy
from dlr.commands.install.kinds import container_of
from dlr.kube.api import JSON

_CHECK_OPTION, _AGENT_OPTION = "--check-image=", "--agent-image="


@dataclass(frozen=True)
class Images:
    """None: not named."""

    controller: str | None = None
    check: str | None = None
    agent: str | None = None

    def otherwise(self, other: Images) -> Images:
        """These, and the other's where one is not named here."""
        return Images(
            other.controller if self.controller is None else self.controller,
            other.check if self.check is None else self.check,
            other.agent if self.agent is None else self.agent,
        )

    def complete(self) -> tuple[str, str, str]:
        """The controller's, the one to check nodes in, and the agent's.

        What is not named is taken from the controller's registry, with its tag.
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
    """Return the images that run only on a node that has them already."""
    return [image for image in images if "/" not in image]


def _last(options: tuple[str, ...] | list[str], option: str) -> str | None:
    """The one that counts where an overlay has added another."""
    found = [each.removeprefix(option) for each in options if each.startswith(option)]
    return found[-1] if found else None


def _beside(image: str, default: str) -> str:
    """The default image, in the registry and with the tag of another."""
    folder, slash, name = image.partition("@")[0].rpartition("/")
    name_wanted, _, tag_otherwise = default.partition(":")
    return f"{folder}{slash}{name_wanted}:{name.partition(':')[2] or tag_otherwise}"
