"""OpenVINO with the growing caches of a network as its state, which it keeps from one step to the next: the form that
optimum-intel gives to decoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from devices.networks.frameworks.texts import Text


def stateful(
    core: Any, model: Any, caches: Sequence[tuple[int, int]], settings: Mapping[str, Any]
) -> Callable[[Sequence[torch.Tensor]], Text]:
    """Compile a model of OpenVINO whose ``caches``, places of inputs and outputs, become its state.

    A text begins with the caches among the inputs. The outputs of a step have None for them.
    """
    import openvino as ov
    from openvino._offline_transformations import apply_make_stateful_transformation

    of_input = {index: model.inputs[index].get_node() for index, _ in caches}
    names = {}
    for index, output in caches:
        model.inputs[index].get_tensor().set_names({f"cache_{index}"})
        model.outputs[output].get_tensor().add_names({f"grown_{index}"})
        names[f"cache_{index}"] = f"grown_{index}"
    places = [at for at in range(len(model.inputs)) if at not in of_input]
    returned = [at for at in range(len(model.outputs)) if at not in {output for _, output in caches}]
    count = len(model.outputs)
    apply_make_stateful_transformation(model, names)
    network = core.compile_model(model, "CPU", settings)

    def on(inputs: Sequence[torch.Tensor]) -> Text:
        request = network.create_infer_request()
        for slot, at in enumerate(places):
            request.set_input_tensor(slot, ov.Tensor(inputs[at].numpy(), shared_memory=True))
        states = {state.name: state for state in request.query_state()}

        def begin() -> None:
            for index, _ in caches:
                name = next(each for each in states if each.startswith(f"cache_{index}grown"))
                states[name].state = ov.Tensor(inputs[index].numpy())

        def step() -> list[Any]:
            request.infer()
            outputs: list[Any] = [None] * count
            for slot, at in enumerate(returned):
                outputs[at] = request.get_output_tensor(slot).data
            return outputs

        def once() -> list[Any]:
            begin()
            return step()

        return Text(begin, step, once)

    return on
