"""The code -> a file for each stage that says which code and libraries it uses: `python -m stages.code`.

Every other stage of dvc.yaml depends on its own file, so a change of code reruns the stages that use it, and no others.
"""

from stages.runtime.atomic import atomic_folder
from stages.runtime.section import PARAMS_FILE, read_params_file
from stages.runtime.stage import run_stage
from stages.runtime.stage_code import FOLDER, stage_codes


def main() -> None:
    if PARAMS_FILE.is_file():
        read_params_file()  # refuses a URL with a credential: DVC would record what this stage reads of it
    codes = stage_codes()
    with atomic_folder(FOLDER) as folder:
        for path, code in codes.items():
            (folder / path.name).write_text(code.text, encoding="utf-8")
    print(f"wrote the code of {len(codes)} stages")


if __name__ == "__main__":
    run_stage(main)
