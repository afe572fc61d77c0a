"""What `megagp` loads before it answers, and what `import megagp` promises all the same."""

import inspect
import subprocess
import sys

import pytest

import megagp
from megagp import distributed
from megagp.cli.app import app
from megagp.cli.fit import fit
from megagp.cli.plan import Device
from megagp.planning import GPUS

SLOW = ("torch", "sklearn", "scipy", "pandas", "matplotlib", "jinja2")
COMMANDS = [command.callback.__name__ for command in app.registered_commands]


def python(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_loads_nothing_slow():
    """Of megagp and of every command, in one process."""
    found = python(
        "import sys\n"
        "from megagp.cli import main\n"
        f"for command in [[], *([name] for name in {COMMANDS})]:\n"
        "    sys.argv = ['megagp', *command, '--help']\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0, command\n"
        f"print('loaded:', [name for name in {SLOW} if name in sys.modules])\n"
    )
    assert found.splitlines()[-1] == "loaded: []"
    assert all(f"megagp {command} [OPTIONS]" in found for command in COMMANDS)


def test_what_help_repeats_is_true():
    """Values that would take torch to look up."""
    assert inspect.signature(fit).parameters["timeout"].default == distributed.TIMEOUT
    assert [device.value for device in Device] == ["cpu", *GPUS]


def test_torch_comes_after_the_wait_policy():
    python(
        "import os, sys\n"
        "os.environ.pop('OMP_WAIT_POLICY', None)\n"
        "os.environ['GOMP_SPINCOUNT'] = '7'\n"
        "import megagp\n"
        "assert 'torch' not in sys.modules\n"
        "assert os.environ['OMP_WAIT_POLICY'] == 'PASSIVE'\n"
        "assert os.environ['GOMP_SPINCOUNT'] == '7'\n"
        "megagp.GPRegressor\n"
        "assert 'torch' in sys.modules\n"
    )


@pytest.mark.parametrize("name", megagp.__all__)
def test_every_name_is_found_and_listed(name):
    assert name in dir(megagp)
    found = getattr(megagp, name)
    assert found.__name__ in (name, f"megagp.{name}")


def test_no_module_stands_in_for_a_name():
    """Whatever was imported before: importing a module sets its name in the package."""
    python(
        "import importlib, pkgutil, megagp\n"
        "for module in pkgutil.iter_modules(megagp.__path__):\n"
        "    if not module.name.startswith('_'):\n"
        "        importlib.import_module(f'megagp.{module.name}')\n"
        "assert callable(megagp.compare) and callable(megagp.load)\n"
        "from megagp import *\n"
        "assert GPRegressor is megagp.GPRegressor and kernels is megagp.kernels\n"
    )


def test_other_names_are_not_found():
    with pytest.raises(AttributeError, match="module 'megagp' has no attribute 'GPRegresor'"):
        megagp.GPRegresor  # noqa: B018
