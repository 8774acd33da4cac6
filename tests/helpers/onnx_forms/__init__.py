"""Single ONNX operators, each in forms that vary its attributes and optional inputs, in the versions where they
differ."""

from __future__ import annotations

from tests.helpers.onnx_forms.attention import attention
from tests.helpers.onnx_forms.element_wise import element_wise
from tests.helpers.onnx_forms.form import Form
from tests.helpers.onnx_forms.indexing import indexing
from tests.helpers.onnx_forms.others import others
from tests.helpers.onnx_forms.products import products_and_norms
from tests.helpers.onnx_forms.quantisation import quantised
from tests.helpers.onnx_forms.recurrence import recurrent
from tests.helpers.onnx_forms.reductions import reductions
from tests.helpers.onnx_forms.resampling import resampling
from tests.helpers.onnx_forms.windows import windows

FORMS: tuple[Form, ...] = (
    *element_wise(), *reductions(), *windows(), *resampling(), *products_and_norms(), *indexing(), *quantised(),
    *recurrent(), *attention(), *others(),
)  # fmt: skip
