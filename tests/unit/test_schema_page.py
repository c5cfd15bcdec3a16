"""docs/schema.md is what the models say, diagrams included."""

import re

import pytest
from sqlalchemy import Index, UniqueConstraint

from agentstore import Store, models
from docs import schema_page

RELATION = re.compile(r'(\w+) (\|\||\|o)(--|\.\.)(o\{|o\|) (\w+) : "(\w+(?:, \w+)*)"')
ATTRIBUTE = re.compile(r"([a-z_]+) ([a-z_]+) ((?:PK|FK|UK)(?:, (?:PK|FK|UK))*)")
WORDS_OF_MERMAID = {"pk", "fk", "uk"}
"""Mermaid takes them for kinds of keys, and no column can be called so."""


def page() -> str:
    return schema_page.PAGE.read_text(encoding="utf-8")


def diagrams() -> list[list[str]]:
    found = re.findall(r"^```mermaid\n(.*?)^```", page(), re.MULTILINE | re.DOTALL)
    return [block.splitlines() for block in found]


def parsed(lines: list[str]) -> tuple[set[tuple[str, ...]], dict[str, dict[str, str]]]:
    """Read a diagram by as much of Mermaid's grammar as is used here.

    Returns:
        The relations, each with the table that is referred to, the two ends and the line, the
        table that refers, and its columns; and the columns of each box with their keys.
    """
    assert lines[0] == "erDiagram"
    relations: set[tuple[str, ...]] = set()
    boxes: dict[str, dict[str, str]] = {}
    inside = ""
    for line in lines[1:]:
        words = line.strip()
        if inside:
            if words == "}":
                inside = ""
                continue
            attribute = ATTRIBUTE.fullmatch(words)
            assert attribute, line
            assert attribute[2] not in WORDS_OF_MERMAID, line
            boxes[inside][attribute[2]] = attribute[3]
        elif words.endswith(" {"):
            inside = words.removesuffix(" {")
            assert inside.isidentifier(), line
            assert inside not in boxes, line
            boxes[inside] = {}
        else:
            relation = RELATION.fullmatch(words)
            assert relation, line
            assert relation.groups() not in relations, line
            relations.add(relation.groups())
    assert not inside
    return relations, boxes


def tables():
    return models.Base.metadata.tables


def test_the_page_is_what_the_models_say_today():
    assert page() == schema_page.written(), f"docs/schema.md is old. Run: {schema_page.COMMAND}"


def test_the_command_says_whether_the_page_is_old(monkeypatch, tmp_path):
    monkeypatch.setattr(schema_page, "PAGE", tmp_path / "schema.md")
    monkeypatch.setattr(schema_page, "written", lambda: "# The page\n")
    monkeypatch.setattr("sys.argv", ["schema_page"])
    schema_page.main()
    monkeypatch.setattr("sys.argv", ["schema_page", "--check"])
    with pytest.raises(SystemExit) as ended:
        schema_page.main()
    assert not ended.value.code
    schema_page.PAGE.write_text("# Another page\n")
    with pytest.raises(SystemExit) as ended:
        schema_page.main()
    assert schema_page.COMMAND in str(ended.value.code)


def test_every_table_and_column_is_on_the_page_once():
    sections = re.split(r"^### ", page(), flags=re.MULTILINE)[1:]
    found = {
        section.partition("\n")[0]: re.findall(r"^\| `(\w+)` ", section, re.MULTILINE)
        for section in sections
    }
    assert found == {name: [c.name for c in table.columns] for name, table in tables().items()}


def test_every_table_is_a_box_of_one_diagram():
    boxes = [box for lines in diagrams() for box in parsed(lines)[1]]
    assert sorted(boxes) == sorted(tables())


def test_the_boxes_have_the_keys_and_nothing_else():
    found = {name: columns for lines in diagrams() for name, columns in parsed(lines)[1].items()}
    for name, table in tables().items():
        expected = {}
        for column in table.columns:
            kinds = {
                "PK": column.primary_key,
                "FK": bool(column.foreign_keys),
                "UK": any(
                    isinstance(each, UniqueConstraint) and [*each.columns] == [column]
                    for each in table.constraints
                ),
            }
            if any(kinds.values()) and column.name != "pk":
                expected[column.name] = ", ".join(kind for kind, is_one in kinds.items() if is_one)
        assert found[name] == expected


def test_the_diagrams_show_every_reference_and_no_other():
    found = {relation for lines in diagrams() for relation in parsed(lines)[0]}
    expected = set()
    for table in tables().values():
        for constraint in table.foreign_key_constraints:
            columns = [table.c[key] for key in constraint.column_keys]
            optional = any(column.nullable for column in columns)
            expected.add(
                (
                    constraint.referred_table.name,
                    "|o" if optional else "||",
                    "--" if constraint.ondelete == "CASCADE" else "..",
                    "o|" if {*columns} == {*table.primary_key.columns} else "o{",
                    table.name,
                    ", ".join(column.name for column in columns),
                )
            )
    assert found == expected


def test_no_diagram_is_a_tangle():
    for lines in diagrams():
        relations, boxes = parsed(lines)
        assert len(relations) <= 12
        assert len(boxes) <= 8


def test_the_page_says_of_every_index_what_it_is_for():
    known, told = set(), set()
    for table in tables().values():
        for index in [*table.indexes, *table.constraints]:
            if isinstance(index, Index | UniqueConstraint):
                columns = [column.name for column in index.columns]
                known.add(index.name[3:])
                if isinstance(index, UniqueConstraint) and columns == ["id"]:
                    told.add(index.name[3:])  # the introduction says it of all
    assert schema_page.INDEXES.keys() == known - told


def test_the_methods_that_it_names_exist():
    with Store("sqlite://") as store:
        for purpose in schema_page.INDEXES.values():
            for repository, method in re.findall(r"`(\w+)\.(\w+)", purpose):
                assert callable(getattr(getattr(store, repository), method))
