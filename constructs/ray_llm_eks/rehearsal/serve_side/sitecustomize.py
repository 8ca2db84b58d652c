"""On PYTHONPATH of the rehearsal's processes: lets PyPI's torchvision be imported beside a CPU build of torch.

vLLM's Qwen3.5 and Qwen3-VL modules import torchvision (for the vision tower's processor, which a rehearsal never
runs). PyPI's x86_64 wheel of it has a C extension linked against CUDA's torch. Without the extension torchvision works
as far as is needed here, except that it attaches shape functions to two operators that the extension would have
declared ("operator torchvision::nms does not exist"). Declaring them is all it takes. Nothing happens until somebody
imports torchvision.
"""

import sys
from importlib.abc import MetaPathFinder


class _DeclareOperators(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if torch.version.cuda is None:
                # The declarations live as long as this object does: hence the module attribute.
                library = torch.library.Library("torchvision", "DEF")
                sys.modules[__name__].library = library
                for operator in ("nms", "qnms"):
                    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return


sys.meta_path.insert(0, _DeclareOperators())
