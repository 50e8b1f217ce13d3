  interface wf_shape_of
    module procedure shape_of_int, shape_of_int64
  end interface
  private :: shape_of_int, shape_of_int64

  interface
    !> wf_comm_from_mpi of a communicator as Fortran has it, after MPI_Init.
    function wf_comm_from_fortran(mpi_comm, name, opts) bind(c)
      import
      type(c_ptr) :: wf_comm_from_fortran
      integer(c_int), value :: mpi_comm
      character(kind=c_char), intent(in), optional :: name(*)
      type(wf_ctx_opts), value :: opts
    end function
  end interface

contains

  !> The shape with these dimensions: wf_shape_of([3, 2]).
  pure function shape_of_int(dims) result(shape)
    integer, intent(in) :: dims(:)
    type(wf_shape) :: shape
    shape%rank = int(size(dims), c_int)
    shape%dim(:size(dims)) = int(dims, c_int64_t)
  end function

  pure function shape_of_int64(dims) result(shape)
    integer(c_int64_t), intent(in) :: dims(:)
    type(wf_shape) :: shape
    shape%rank = int(size(dims), c_int)
    shape%dim(:size(dims)) = dims
  end function

  !> The characters before the first zero byte; "" for NULL.
  function wf_string(text) result(string)
    type(c_ptr), intent(in) :: text
    character(len=:), allocatable :: string
    character(kind=c_char), pointer :: all(:)
    integer(c_size_t) :: n
    interface
      function strlen(s) bind(c)
        import
        integer(c_size_t) :: strlen
        type(c_ptr), value :: s
      end function
    end interface
    n = 0
    if (c_associated(text)) n = strlen(text)
    allocate (character(len=n) :: string)
    if (n == 0) return
    call c_f_pointer(text, all, [n])
    string = transfer(all, string)
  end function

  !> What WF_MUST is in C: prints the error with its trail and ends the program, unless status is WF_OK.
  subroutine wf_must(status)
    integer(c_int), intent(in) :: status
    if (status /= WF_OK) call wf_must_failed(status, 'a Fortran program'//c_null_char, 0_c_int, 'wf_must'//c_null_char)
  end subroutine
end module
