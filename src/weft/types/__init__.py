"""Define the protocol's messages as structs, one set for all revisions.

Names are those of the specification, in snake_case; on the wire they are in camelCase. Before a message is sent, the
era removes fields that the protocol version does not have. Each module lists its public structs in `__all__`.
"""

from weft.types import base, features, interaction, lifecycle, tasks
from weft.types.base import *  # noqa: F403 - the names are in its `__all__`
from weft.types.base import CacheScope, LogLevel, Role
from weft.types.features import *  # noqa: F403
from weft.types.features import ContentBlock
from weft.types.interaction import *  # noqa: F403
from weft.types.lifecycle import *  # noqa: F403
from weft.types.tasks import *  # noqa: F403

__all__ = ["CacheScope", "ContentBlock", "LogLevel", "Role"]
__all__ += base.__all__
__all__ += features.__all__
__all__ += interaction.__all__
__all__ += lifecycle.__all__
__all__ += tasks.__all__
