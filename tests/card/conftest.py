from tests.publish.conftest import evaluated_template, project

__all__ = ["evaluated_template", "project"]
